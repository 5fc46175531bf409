"""The interface between models and backends: layers and step inputs. No kernels, no weights."""
