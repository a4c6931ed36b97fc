"""Every option of Tensorwright, each declared once; commands, `build()`, `LLM()`, the server and Triton read it here.

`declare.py` says what an option is. The other files declare the options: of a build, of an engine that runs, of a
request, of the server, of a model in Triton, of a benchmark. `tensorwright/click_options.py` makes options of commands
of them. The declarations import neither click nor anything that computes.
"""
