"""A page that asks a law: the package's own answers and figures behind sliders, an API and an MCP server (Gradio)."""
