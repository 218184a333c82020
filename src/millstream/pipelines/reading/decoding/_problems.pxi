# What may be wrong with a value, and how people are told.

cdef enum:
    DEPTH_MAX = 512

cdef enum Problem:
    FINE
    # malformed
    EMPTY, UNEXPECTED, CUT_SHORT, TRAILING, NOT_UTF8, CONTROL, BAD_ESCAPE, LONE_SURROGATE, TOO_DEEP,
    TWICE, KEY_TWICE, FIELD_COUNT, AFTER_QUOTE, SECOND_LINE,
    BAD_NUMBER, BAD_LENGTH, BAD_BLOCK, BAD_BOOLEAN, BAD_CHOICE, NO_FRAME, TOO_MANY
    # wrong type
    WRONG_TYPE, NOT_WHOLE, OUT_OF_RANGE, NOT_EXACT, BAD_DATE, BAD_TIMESTAMP, BAD_NTZ, HAS_OFFSET,
    EPOCH, BAD_BASE64, OTHER_SYMBOL
    # missing field
    MISSING, NULL_VALUE, TOMBSTONE
    REFUSED                     # told elsewhere
    NO_MEMORY

MALFORMED = "malformed"
WRONG_TYPE_REASON = "wrong type"
MISSING_FIELD = "missing field"

MESSAGES = {
    EMPTY: "the value is empty",
    UNEXPECTED: "unexpected {byte} at byte {position}",
    CUT_SHORT: "it ends too early, after {position} bytes",
    TRAILING: "more follows after its end, at byte {position}",
    NOT_UTF8: "not UTF-8 at byte {position}",
    CONTROL: "control character {byte} in a string, at byte {position}",
    BAD_ESCAPE: "bad escape in a string, at byte {position}",
    LONE_SURROGATE: "half of a surrogate pair in a string, at byte {position}",
    TOO_DEEP: f"nested deeper than {DEPTH_MAX} levels, at byte {{position}}",
    TWICE: "{path} is there twice",
    KEY_TWICE: "{path} has a key twice",
    FIELD_COUNT: "another number of fields than the {fields} of the schema",
    AFTER_QUOTE: "unexpected {byte} after a closing quote, at byte {position}",
    SECOND_LINE: "a second line begins at byte {position}",
    BAD_NUMBER: "a number with too many bits, at byte {position}",
    BAD_LENGTH: "a negative length, at byte {position}",
    BAD_BLOCK: "a block of items with another length than it says, at byte {position}",
    BAD_BOOLEAN: "a boolean that is neither 0 nor 1, at byte {position}",
    BAD_CHOICE: "a branch of a union or a symbol of an enum that does not exist, at byte {position}",
    NO_FRAME: "it does not begin with a 0 and the id of a schema, as values written with a schema "
        "registry do",
    TOO_MANY: "more items than a column can hold, at byte {position}",
    WRONG_TYPE: "{path} is {found}, not {type}",
    NOT_WHOLE: "{path} is no whole number, and {type} takes no other",
    OUT_OF_RANGE: "{path} is too large for {type}",
    NOT_EXACT: "{path} does not fit {type} exactly",
    BAD_DATE: "{path} is no date; write 2026-11-30",
    BAD_TIMESTAMP: "{path} is no timestamp; write 2026-11-30T12:00:00.123Z or with an offset",
    BAD_NTZ: "{path} is no timestamp; write 2026-11-30T12:00:00.123",
    HAS_OFFSET: "{path} has an offset from UTC, which {type} cannot keep; declare it timestamp",
    EPOCH: "{path} is a number, not {type}; for a timestamp, name its unit with the option "
        "timestampFormat, like epoch_millis, or declare it long and convert it",
    BAD_BASE64: "{path} is not base64",
    OTHER_SYMBOL: "{path} is {found}, a symbol that avroSchema does not have",
    MISSING: "{path} is missing, and may not be null",
    NULL_VALUE: "{path} is null, and may not be",
    TOMBSTONE: "the record has no value, and {path} may not be null",
}


cdef str reason_for(Problem problem):
    if problem >= MISSING:
        return MISSING_FIELD
    return WRONG_TYPE_REASON if problem >= WRONG_TYPE else MALFORMED
