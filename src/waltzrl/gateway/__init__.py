"""An HTTP request in; collaborate; an answer and an audit line out."""
