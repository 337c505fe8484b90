"""Whatever is sent, the service answers as its OpenAPI document says, and never with a fault of its own."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis_profiles import FEW_EXAMPLES

schemathesis = pytest.importorskip("schemathesis", reason="needs the [test-all] extra")
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

pytestmark = pytest.mark.integration

FAULTS = 500


def test_responses_match_the_openapi_document(service):
    document = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    asked = set()
    for operation in (found.ok() for found in document.get_all_operations()):

        @settings(FEW_EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy())
        def check(case):
            # Text that no schema can describe, such as PTX, is refused with 422: that is no fault.
            answer = case.call_and_validate(excluded_checks=[positive_data_acceptance])
            assert answer.status_code < FAULTS

        check()
        asked.add(operation.label)
    assert len(asked) == 9
