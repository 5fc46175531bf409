"""Custom resources as users see them: fields, defaults, rules, conditions, and the CRDs generated from them. Pure."""
