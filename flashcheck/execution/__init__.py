"""Who checks the chunks of an exhaustive suite: this process, several, or a cluster."""
