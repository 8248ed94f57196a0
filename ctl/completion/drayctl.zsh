# Offers the column of the output of drayctl VERB. Options with files or directories, such as --control, are passed on.
_drayctl_ask() {
	local spec name value
	local -a reply all found places expl

	_drayctl_options .
	all=($reply)
	_drayctl_options $1
	all+=($reply)
	for spec in ${(M)all:#*:_files*}; do
		name=${spec%%=*}
		value=${(Q)${opt_args[$name]:-$given[$name]}}
		[[ -z $value ]] || places+=("$name=${value/#\~\//$HOME/}")
	done
	found=(${(uf)"$(${~program} --timeout 1s $1 --plain $places 2>/dev/null </dev/null | cut -f $2)"})
	_wanted values expl value compadd -a found
}

_drayctl() {
	local word name verb program=$words[1] curcontext=$curcontext
	local -a reply every specs
	local -A given opt_args
	integer i

	_drayctl_options .
	every=($reply)
	# Read the words up to the verb.
	for (( i = 2; i < CURRENT; i++ )); do
		word=$words[i]
		case $word in
		--) ;;
		-*=*) given[${word%%=*}]=${word#*=} ;;
		-h) given[--help]=yes ;;
		-*)
			given[$word]=yes
			[[ -z ${(M)every:#$word=*} ]] || given[$word]=$words[++i]
			;;
		*)
			verb=$word
			break
			;;
		esac
	done
	if [[ -z $verb ]]; then
		_arguments -S $every '1:verb:_drayctl_verbs'
		return
	fi

	# The verb's own options come before the global ones; those before the verb are not offered again.
	_drayctl_options $verb
	specs=($reply)
	for word in $every; do
		name=${word%%[=\[]*}
		(( $+given[$name] )) || [[ -n ${(M)specs:#${name}[=\[]*} ]] || specs+=($word)
	done
	_drayctl_arguments $verb
	words=($verb "${(@)words[i + 1,-1]}")
	(( CURRENT -= i - 1 ))
	_arguments -S $specs $reply
}

_drayctl "$@"
