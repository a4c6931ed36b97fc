"""The command `tensorwright chat`: a conversation in the terminal."""
