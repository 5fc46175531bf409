"""Chat completions: messages for the template, tools, reasoning, and answers. Requests of other APIs become chats."""
