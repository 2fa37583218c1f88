"""Property tests run the same examples each time, so that a red build is red again; HYPOTHESIS_PROFILE=thorough digs deeper."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "property",
    settings.get_profile("devmem"),
    derandomize=True,
    database=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
if "HYPOTHESIS_PROFILE" not in os.environ:
    settings.load_profile("property")
