module node.local/pause

go 1.24
