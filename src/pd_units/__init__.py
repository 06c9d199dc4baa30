"""systemd units for an LLM served prefill/decode-disaggregated, installed and watched until ready."""

__version__ = "0.1.0"
SCHEMA = 1
