"""The batches of a Parquet file as dicts of device arrays."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import devmem as dm

with TemporaryDirectory() as folder:
    path = Path(folder) / "data.parquet"
    pq.write_table(pa.table({"x": np.arange(1000.0), "y": np.arange(1000) % 7}), path, row_group_size=250)

    def batches(columns):
        for batch in pq.ParquetFile(path).iter_batches(200, columns=columns):
            # Without nulls and texts: zero_copy_only says so where there are any.
            yield {name: batch[name].to_numpy(zero_copy_only=True) for name in columns}

    rows = 0
    for batch in dm.prefetch(batches(["x", "y"]), depth=2):
        rows += batch["x"].size
        assert batch["x"].dtype == np.float64
    assert rows == 1000
    print(f"{rows} rows")

# A single column goes both ways by DLPack.
column = pa.array(np.arange(5.0))
array = dm.from_dlpack(column)
assert pa.Array.from_dlpack(array.copy_to_host()).equals(column)
