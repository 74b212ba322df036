"""The network door: which addresses may be dialled, and the only place that builds HTTP clients."""
