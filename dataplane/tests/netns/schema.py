"""Holds values against docs/control.schema.json (argument 1). Standard input: {"is": DEFINITION, "value": …, "fits": BOOL} a line.

The schema lets fields pass that it does not name, because later versions may add some; here none may be missing from it.
"""

import json
import sys

import jsonschema


def close(schema):
    """Forbids, everywhere, what is not named."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            close(part)
    elif isinstance(schema, list):
        for part in schema:
            close(part)


with open(sys.argv[1]) as file:
    schema = json.load(file)
jsonschema.Draft202012Validator.check_schema(schema)
close(schema)
wrong = 0
for line in sys.stdin:
    case = json.loads(line)
    part = {"$ref": f"#/$defs/{case['is']}", "$defs": schema["$defs"]}
    errors = list(jsonschema.Draft202012Validator(part).iter_errors(case["value"]))
    if (not errors) != case["fits"]:
        wrong += 1
        print(json.dumps(case["value"])[:2000], *(error.message for error in errors), sep="\n  ")
        for error in errors:
            for deeper in error.context or ():
                print("   ", list(deeper.absolute_path), deeper.message[:300])
sys.exit(wrong > 0)
