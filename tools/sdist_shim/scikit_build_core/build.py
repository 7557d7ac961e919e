"""Stands in for the build backend of the pinned sdist while pip downloads it.

`pip download` asks a source archive's build backend for the package's metadata. The real backend
would be one more download, and nothing is built here, so this one answers from what is pinned.
"""
import os


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    name = "llama_cpp_python-0.3.36.dist-info"
    os.makedirs(os.path.join(metadata_directory, name))
    with open(os.path.join(metadata_directory, name, "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.3.36\n")
    return name
