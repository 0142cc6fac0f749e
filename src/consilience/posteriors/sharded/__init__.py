"""The posteriors of very many sites, loaded where the work is and fused in passes over shards."""
