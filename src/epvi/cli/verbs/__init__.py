"""One file per verb of the command line; the group imports a verb's file when the verb is called."""
