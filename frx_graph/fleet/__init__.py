"""The findings over thousands of runs: their bundles are found, each is read into rows, and SQL adds the rows up."""
