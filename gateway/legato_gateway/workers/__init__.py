"""The known workers: their connections and their last reports."""
