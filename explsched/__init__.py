"""The front door of explsched, and the ground floor on which every other package stands."""
