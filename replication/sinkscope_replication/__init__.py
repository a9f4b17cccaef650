"""When Attention Sink Emerges in Language Models (Gu et al., ICLR 2025), asked again with sinkscope.

Installed with sinkscope, its questions are known to `sinkscope experiment`, and their runs to `verdict` and `report`.
"""

__version__ = "0.1.0"
