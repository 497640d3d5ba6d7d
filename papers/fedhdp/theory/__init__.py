"""The theory room: FeO2's and FedHDP's closed forms, their Monte Carlo, figures and the price of privacy."""
