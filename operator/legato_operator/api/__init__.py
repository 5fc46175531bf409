"""The custom resources as users see them: fields, defaults, rules, conditions, and the CRDs made from these. Pure."""
