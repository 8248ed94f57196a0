# bash completion for drayctl, by the tables before. Needs nothing but bash.

# Which table an option of $verb is in: its own before those of every verb.
_drayctl_key() {
	if [[ $verb && " ${_drayctl_options[$verb]-} " == *" $1 "* ]]; then
		key="$verb $1"
	else
		key=". $1"
	fi
}

# Takes those of its arguments that go on from $start.
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

# What drayctl VERB prints in that column. Given options that name places go along, such as --control.
_drayctl_ask() {
	local known=" ${_drayctl_options[.]} ${_drayctl_options[$1]-} " place
	local -a command=("${words[0]/#\~\//$HOME/}" --timeout 1s "$1" --plain)
	for place in "${places[@]}"; do
		[[ $known != *" ${place%%=*} "* ]] || command+=("$place")
	done
	"${command[@]}" 2>/dev/null </dev/null | cut -f "$2" | sort -u
}

# Offers values of that row of the table.
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

# words: those of the line up to the cursor. Readline ends a word at = and : as well.
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

# Reads the words before the last one.
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
			[[ $word != -h ]] || word=--help
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
	# readline replaces what stands after its last end of a word
	[[ $last != [=:] ]] || last=
	COMPREPLY=("${COMPREPLY[@]#"${start%"$last"}"}")
}

complete -F _drayctl drayctl
