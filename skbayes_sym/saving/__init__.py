"""Files of fitted models without pickle.

* `files`: `save` and `load`: arrays and a JSON header, in a safetensors file
* `values`: the classes that a file may name, and the conversion of values to JSON and back
* `checks`: types, shapes and ranges of the objects in a file

Nothing in a file is ever executed.
"""
