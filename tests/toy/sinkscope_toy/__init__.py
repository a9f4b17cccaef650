"""A package that adds to sinkscope: a file for each kind of thing, and nothing imported before it is asked for."""
