"""`python -m sinkscope.probes.contracts`: print the table of transformers' families."""

from sinkscope.probes.contracts.contract import table

if __name__ == "__main__":
    print(table())
