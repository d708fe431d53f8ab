"""How many replicas a service needs: rules without I/O, one file each, behind `inference_gateway.model.ScaleRule`."""
