"""The toy tasks that ship with the package, one file each. `registry` finds them; `config` imports no torch."""
