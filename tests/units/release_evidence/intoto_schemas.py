"""The formats of in-toto as JSON Schema (draft 2020-12), written after their specification.

The specification is https://github.com/in-toto/attestation (Apache-2.0): spec/v1/statement.md,
spec/v1/resource_descriptor.md, spec/v1/digest_set.md, spec/v1/field_types.md and spec/predicates/test-result.md. It
publishes no JSON Schema. Unlike a consumer, which must ignore unknown fields, these schemas refuse them, because a
producer that writes one has probably misspelt it.
"""

from __future__ import annotations

from typing import Any

DESCRIPTOR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "uri": {"type": "string", "format": "uri"},
        "digest": {
            "type": "object",
            "minProperties": 1,
            "properties": {"sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
            "additionalProperties": {"type": "string"},
        },
        "content": {"type": "string", "contentEncoding": "base64"},
        "downloadLocation": {"type": "string", "format": "uri"},
        "mediaType": {"type": "string", "pattern": "^[a-z]+/[a-z0-9.+-]+$"},
        "annotations": {"type": "object"},
    },
    "anyOf": [{"required": ["uri"]}, {"required": ["digest"]}, {"required": ["content"]}],
    "additionalProperties": False,
}
NAMES = {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True}
TEST_RESULT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "result": {"enum": ["PASSED", "WARNED", "FAILED"]},
        "configuration": {"type": "array", "items": DESCRIPTOR},
        "url": {"type": "string", "format": "uri"},
        "passedTests": NAMES,
        "warnedTests": NAMES,
        "failedTests": NAMES,
    },
    "required": ["result", "configuration"],
    "additionalProperties": False,
}
STATEMENT: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "_type": {"const": "https://in-toto.io/Statement/v1"},
        "subject": {
            "type": "array",
            "minItems": 1,
            "items": {"allOf": [DESCRIPTOR, {"required": ["digest"]}]},
        },
        "predicateType": {"const": "https://in-toto.io/attestation/test-result/v0.1"},
        "predicate": TEST_RESULT,
    },
    "required": ["_type", "subject", "predicateType", "predicate"],
    "additionalProperties": False,
}
