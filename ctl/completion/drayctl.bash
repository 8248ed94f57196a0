# bash completion for drayctl, from the tables above. Needs only bash.

# Sets key to the row of an option; the verb's own options come before the global ones.
_drayctl_key() {
	if [[ $verb && " ${_drayctl_options[$verb]-} " == *" $1 "* ]]; then
		key="$verb $1"
	else
		key=". $1"
	fi
}

# Offers those arguments that begin with $start.
_drayctl_offer() {
	local word
	for word; do
		[[ $word != "$start"* ]] || COMPREPLY+=("$before$word")
	done
}

_drayctl_offer_options() {
	local option key
	for option in ${_drayctl_options[${verb:-.}]-} ${_drayctl_options[.]}; do
		_drayctl_key "$option"
		[[ ${given[$key]-} ]] || _drayctl_offer "$option"
		given[$key]=offered
	done
}

# Prints the column of the output of drayctl VERB. Options with files or directories, such as --control, are passed on.
_drayctl_ask() {
	local known=" ${_drayctl_options[.]} ${_drayctl_options[$1]-} " place
	local -a command=("${words[0]/#\~\//$HOME/}" --timeout 1s "$1" --plain)
	for place in "${places[@]}"; do
		[[ $known != *" ${place%%=*} "* ]] || command+=("$place")
	done
	"${command[@]}" 2>/dev/null </dev/null | cut -f "$2" | sort -u
}

# Offers the values of this row.
_drayctl_offer_values() {
	local kind argument
	local -a found
	read -r kind argument <<<"${_drayctl_values[$1]-}"
	case $kind in
	file) compopt -o default ;;
	dir) compopt -o dirnames ;;
	words) _drayctl_offer $argument ;;
	ask)
		mapfile -t found < <(_drayctl_ask $argument)
		_drayctl_offer "${found[@]}"
		;;
	esac
}

# Sets words to the words up to the cursor. Readline also splits at = and :, which this undoes.
_drayctl_words() {
	local word rest=${COMP_LINE-}
	for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
		if [[ $word && ${#words[@]} -gt 0 && $rest == "$word"* ]]; then
			words[-1]+=$word
		else
			words+=("$word")
			rest=${rest#"${rest%%[![:space:]]*}"}
		fi
		rest=${rest#"$word"}
	done
}

# Reads the words before the last one: verb, options and number of arguments.
_drayctl_walk() {
	local word
	for word in "${words[@]:1:${#words[@]}-2}"; do
		if [[ $option ]]; then
			[[ ${_drayctl_values[$option]} != @(file|dir) ]] ||
				places+=("${option#* }=${word/#\~\//$HOME/}")
			option=
		elif [[ $options && $word == -- ]]; then
			options=
		elif [[ $options && $word == -?* ]]; then
			word=${_drayctl_letters[$word]-$word}
			_drayctl_key "${word%%=*}"
			given[$key]=given
			if [[ $word != *=* ]]; then
				[[ ! ${_drayctl_values[$key]-} ]] || option=$key
			elif [[ ${_drayctl_values[$key]-} == @(file|dir) ]]; then
				places+=("$word")
			fi
		elif [[ ! $verb ]]; then
			verb=$word
		else
			((arguments += 1))
		fi
	done
}

_drayctl() {
	local IFS=$' \t\n'
	local verb= option= options=yes arguments=0 key= start= before= last=
	local -a words=() places=()
	local -A given=()

	COMPREPLY=()
	_drayctl_words
	_drayctl_walk
	start=${words[-1]}
	last=${COMP_WORDS[COMP_CWORD]}
	if [[ $option ]]; then
		_drayctl_offer_values "$option"
	elif [[ $options && $start == --*=* ]]; then
		_drayctl_key "${start%%=*}"
		before=${start%%=*}=
		start=${start#*=}
		_drayctl_offer_values "$key"
		start=$before$start
	elif [[ $options && $start == -* ]]; then
		_drayctl_offer_options
	elif [[ ! $verb ]]; then
		_drayctl_offer $_drayctl_verbs
	elif [[ ${_drayctl_values[$verb $((arguments + 1))]-} ]]; then
		_drayctl_offer_values "$verb $((arguments + 1))"
	elif [[ $options && ! $start ]]; then
		_drayctl_offer_options
	fi
	# Readline replaces only the text after its last split.
	[[ $last != [=:] ]] || last=
	COMPREPLY=("${COMPREPLY[@]#"${start%"$last"}"}")
}

complete -F _drayctl drayctl
