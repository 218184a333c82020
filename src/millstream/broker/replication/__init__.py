"""The replicas of this broker that are not alone: fetching for followers, changing in-sync sets."""
