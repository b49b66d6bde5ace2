"""Who may run where: filters, candidates, policies and orderings."""
