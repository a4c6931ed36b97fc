"""Declares every option of Tensorwright once, for the commands, `build()`, `LLM()`, the server and Triton.

`declare.py` defines what an option is. The other files declare the options: of a build, of an engine that runs, of a
request, of the server, of a model in Triton, of a benchmark. `tensorwright/click_options.py` turns them into options of
commands. The declarations import neither click nor anything that computes.
"""
