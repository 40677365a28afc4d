"""One file or package for each framework and client library, the only one that imports the library."""
