"""Steps of clustering, each written as start / local / combine; a run is a list of stages."""
