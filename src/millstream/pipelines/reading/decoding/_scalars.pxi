# Values from text: numbers, moments, base64. What does not fit exactly is a problem, never rounded
# or cut; see docs/decisions/0010-json-decoding.md.

cdef enum:
    MANTISSA_DIGITS_MAX = 19            # what 64 bits always hold
    EXPONENT_MAX = 1_000_000            # beyond any number; keeps sums from overflowing
    MICROS = 1_000_000

cdef double[23] POWERS
cdef int _power
for _power in range(23):
    POWERS[_power] = 10.0 ** _power     # these are exact

cdef extern from "Python.h":
    # With no exception to raise for overflow it answers infinity; what it is given is a number.
    double PyOS_string_to_double(const char* text, char** end, void* overflow)

cdef extern from *:
    ctypedef long long int128_t "__int128_t"
    int count_trailing_zeros "__builtin_ctzll"(unsigned long long)


cdef struct Number:
    const uint8_t* end
    bint negative
    bint leading_zero
    bint is_whole               # neither fraction nor exponent
    bint is_cut                 # more digits than the mantissa holds
    uint64_t mantissa
    int64_t fraction_digits
    int64_t power               # the exponent as written


cdef inline bint is_digit(uint8_t it) noexcept:
    return <uint8_t>(it - c"0") <= 9


cdef inline bint scan_number(const uint8_t* at, const uint8_t* end, Number* number) noexcept:
    """Whether a number begins at `at`, by JSON's grammar; leading zeros are left to the caller."""
    cdef int significant = 0
    cdef const uint8_t* first
    cdef uint64_t mantissa = 0
    number.negative = at < end and at[0] == c"-"
    at += number.negative
    number.is_whole = True
    number.is_cut = False
    number.fraction_digits = 0
    number.power = 0
    first = at
    while at < end and is_digit(at[0]):
        if significant < MANTISSA_DIGITS_MAX:
            mantissa = 10 * mantissa + (at[0] - c"0")
        else:
            number.is_cut = True
        significant += mantissa != 0
        at += 1
    if at == first:
        return False
    number.leading_zero = first[0] == c"0" and at - first > 1
    if at < end and at[0] == c".":
        number.is_whole = False
        at += 1
        first = at
        while at < end and is_digit(at[0]):
            if significant < MANTISSA_DIGITS_MAX:
                mantissa = 10 * mantissa + (at[0] - c"0")
            else:
                number.is_cut = True
            significant += mantissa != 0
            at += 1
        if at == first:
            return False
        number.fraction_digits = at - first
    if at < end and at[0] | 0x20 == c"e":
        number.is_whole = False
        at = scan_power(at + 1, end, number)
        if at == NULL:
            return False
    number.mantissa = mantissa
    number.end = at
    return True


cdef const uint8_t* scan_power(const uint8_t* at, const uint8_t* end, Number* number) noexcept:
    cdef bint negative = at < end and at[0] == c"-"
    cdef const uint8_t* first
    if at < end and (at[0] == c"-" or at[0] == c"+"):
        at += 1
    first = at
    while at < end and is_digit(at[0]):
        if number.power < EXPONENT_MAX:
            number.power = 10 * number.power + (at[0] - c"0")
        at += 1
    if negative:
        number.power = -number.power
    return at if at > first else NULL


cdef inline Problem append_integer(Column* column, const Number* number) noexcept:
    cdef uint64_t limit = (<uint64_t>1 << (8 * column.width - 1)) - 1 + number.negative
    cdef int64_t value
    cdef uint8_t* target = column.values + column.count * column.width
    if not number.is_whole:
        return NOT_WHOLE
    if number.is_cut or number.mantissa > limit:
        return OUT_OF_RANGE
    value = <int64_t>(0 - number.mantissa if number.negative else number.mantissa)
    if column.width == 8:
        (<int64_t*>target)[0] = value
    elif column.width == 4:
        (<int32_t*>target)[0] = <int32_t>value
    elif column.width == 2:
        (<int16_t*>target)[0] = <int16_t>value
    else:
        (<int8_t*>target)[0] = <int8_t>value
    end_value(column)
    return FINE


cdef inline Problem append_floating(
    Column* column, const uint8_t* start, const Number* number, uint8_t* scratch
) noexcept:
    """`scratch` has room for the number's text and one byte more."""
    cdef int64_t exponent = number.power - number.fraction_digits
    cdef int64_t length
    cdef double value
    if not number.is_cut and number.mantissa < (<uint64_t>1 << 53) and -22 <= exponent <= 22:
        # Both are exact as doubles, so that the one operation rounds right (Clinger's fast path).
        value = <double>number.mantissa
        value = value / POWERS[-exponent] if exponent < 0 else value * POWERS[exponent]
        if number.negative:
            value = -value
    else:
        length = number.end - start
        memcpy(scratch, start, length)
        scratch[length] = 0
        value = PyOS_string_to_double(<const char*>scratch, NULL, NULL)
    return append_double(column, value) if value - value == 0 else OUT_OF_RANGE


cdef inline Problem append_double(Column* column, double value) noexcept:
    cdef float narrow
    if column.kind == DOUBLE:
        (<double*>column.values)[column.count] = value
    else:
        narrow = <float>value
        if narrow - narrow != 0 and value - value == 0:
            return OUT_OF_RANGE
        (<float*>column.values)[column.count] = narrow
    end_value(column)
    return FINE


cdef bint append_special(Column* column, const uint8_t* text, int64_t length) noexcept:
    """NaN and the infinities by the names that Spark gives them in JSON and CSV."""
    if length == 3 and memcmp(text, b"NaN", 3) == 0:
        append_double(column, NAN)
    elif length == 8 and memcmp(text, b"Infinity", 8) == 0:
        append_double(column, INFINITY)
    elif length == 9 and memcmp(text, b"-Infinity", 9) == 0:
        append_double(column, -INFINITY)
    else:
        return False
    return True


cdef Problem append_decimal(Column* column, const uint8_t* at, const Number* number) noexcept:
    cdef int128_t value = 0
    cdef int128_t tenth = 1             # of the first number with too many digits
    cdef int64_t zeros = 0              # met, but not known yet to matter
    cdef int64_t shift = column.scale + number.power - number.fraction_digits
    cdef int64_t index
    for index in range(column.precision - 1):
        tenth *= 10
    while at < number.end and at[0] | 0x20 != c"e":
        if at[0] == c"0":
            zeros += value != 0
        elif is_digit(at[0]):
            for index in range(zeros + 1):
                if value >= tenth:
                    return NOT_EXACT
                value *= 10
            value += at[0] - c"0"
            zeros = 0
        at += 1
    shift += zeros
    if value != 0 and shift < 0:
        return NOT_EXACT
    while value != 0 and shift > 0:
        if value >= tenth:
            return NOT_EXACT
        value *= 10
        shift -= 1
    (<int128_t*>column.values)[column.count] = -value if number.negative else value
    end_value(column)
    return FINE


# Moments


cdef inline int digits(const uint8_t* at, int count) noexcept:
    """The number that so many digits make; negative if they are not all digits."""
    cdef int value = 0
    cdef int index
    for index in range(count):
        if not is_digit(at[index]):
            return -1
        value = 10 * value + (at[index] - c"0")
    return value


cdef inline bint read_date(const uint8_t* at, const uint8_t* end, int64_t* days) noexcept:
    """`YYYY-MM-DD` as days since 1970; years 1 to 9999, in the Gregorian calendar throughout."""
    cdef int year, month, day, last, era, year_of_era, day_of_year, day_of_era
    if end - at < 10 or at[4] != c"-" or at[7] != c"-":
        return False
    year = digits(at, 4)
    month = digits(at + 5, 2)
    day = digits(at + 8, 2)
    if year < 1 or month < 1 or month > 12 or day < 1:
        return False
    if month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    else:
        last = 30 if month in (4, 6, 9, 11) else 31
    if day > last:
        return False
    # Years begin in March here, so that the leap day is their last.
    year -= month <= 2
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    days[0] = era * 146097 + day_of_era - 719468        # from 1 March 0000 to 1970
    return True


cdef inline bint read_clock(
    const uint8_t** place, const uint8_t* end, int64_t* micros
) noexcept:
    """`HH:MM`, `HH:MM:SS` or `HH:MM:SS.fraction`; digits beyond microseconds are cut."""
    cdef const uint8_t* at = place[0]
    cdef int hour, minute
    cdef int second = 0
    cdef int64_t unit = MICROS
    cdef int64_t fraction = 0
    cdef const uint8_t* first
    if end - at < 5 or at[2] != c":":
        return False
    hour = digits(at, 2)
    minute = digits(at + 3, 2)
    at += 5
    if end - at >= 3 and at[0] == c":":
        second = digits(at + 1, 2)
        at += 3
        if at < end and at[0] == c".":
            at += 1
            first = at
            while at < end and is_digit(at[0]):
                unit //= 10
                fraction += unit * (at[0] - c"0")
                at += 1
            if at == first:
                return False
    if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
        return False
    micros[0] = ((hour * 60 + minute) * 60 + second) * <int64_t>MICROS + fraction
    place[0] = at
    return True


cdef inline bint read_offset(const uint8_t* at, const uint8_t* end, int64_t* micros) noexcept:
    """`Z`, `+HH`, `+HHMM` or `+HH:MM`, and nothing after it."""
    cdef int hours
    cdef int minutes = 0
    cdef int64_t length = end - at
    micros[0] = 0
    if length == 1 and at[0] | 0x20 == c"z":
        return True
    if length not in (3, 5, 6) or (at[0] != c"+" and at[0] != c"-"):
        return False
    hours = digits(at + 1, 2)
    if length == 5:
        minutes = digits(at + 3, 2)
    elif length == 6:
        minutes = digits(at + 4, 2) if at[3] == c":" else -1
    if not (0 <= hours <= 18 and 0 <= minutes < 60):
        return False
    micros[0] = (hours * 60 + minutes) * <int64_t>60 * MICROS * (-1 if at[0] == c"-" else 1)
    return True


cdef Problem append_moment(Column* column, const uint8_t* at, int64_t length) noexcept:
    """A date, or a timestamp in ISO 8601; without an offset it is UTC's."""
    cdef const uint8_t* end = at + length
    cdef int64_t days = 0
    cdef int64_t micros = 0
    cdef int64_t offset = 0
    cdef bint local = column.kind == TIMESTAMP_NTZ
    cdef Problem bad = BAD_DATE if column.kind == DATE else BAD_NTZ if local else BAD_TIMESTAMP
    if not read_date(at, end, &days):
        return bad
    at += 10
    if column.kind == DATE:
        if at != end:
            return bad
        (<int32_t*>column.values)[column.count] = <int32_t>days
        end_value(column)
        return FINE
    if at < end:
        if at[0] != c" " and at[0] | 0x20 != c"t":
            return bad
        at += 1
        if not read_clock(&at, end, &micros):
            return bad
        if at < end:
            if not read_offset(at, end, &offset):
                return bad
            if local:
                return HAS_OFFSET
    (<int64_t*>column.values)[column.count] = days * 86400 * MICROS + micros - offset
    end_value(column)
    return FINE


cdef Problem append_epoch(Column* column, const Number* number) noexcept:
    """A number of units since 1970, in the years that have four digits."""
    # Seconds from 1970 to the beginning of year 1, and to the end of year 9999.
    cdef uint64_t seconds = 62_135_596_800 if number.negative else 253_402_300_799
    cdef int64_t micros
    if not number.is_whole:
        return NOT_WHOLE
    if number.is_cut or number.mantissa > seconds * MICROS // <uint64_t>column.scale:
        return OUT_OF_RANGE
    micros = <int64_t>number.mantissa * column.scale
    (<int64_t*>column.values)[column.count] = -micros if number.negative else micros
    end_value(column)
    return FINE


# Bytes


cdef inline int sextet(uint8_t it) noexcept:
    if c"A" <= it <= c"Z":
        return it - c"A"
    if c"a" <= it <= c"z":
        return it - c"a" + 26
    if is_digit(it):
        return it - c"0" + 52
    return 62 if it == c"+" else 63 if it == c"/" else -1


cdef Problem append_base64(Column* column, const uint8_t* text, int64_t length) noexcept:
    """Standard alphabet, padded."""
    cdef uint8_t* target = data_room(column, length)
    cdef int64_t size = length // 4 * 3
    cdef int64_t index
    cdef int first, second, third, fourth
    if target == NULL:
        return NO_MEMORY
    if length % 4:
        return BAD_BASE64
    for index in range(0, length, 4):
        first = sextet(text[index])
        second = sextet(text[index + 1])
        third = sextet(text[index + 2])
        fourth = sextet(text[index + 3])
        if index + 4 == length and text[index + 3] == c"=":
            fourth = 0
            size -= 1
            if text[index + 2] == c"=":
                third = 0
                size -= 1
        if first < 0 or second < 0 or third < 0 or fourth < 0:
            return BAD_BASE64
        target[index // 4 * 3] = first << 2 | second >> 4
        target[index // 4 * 3 + 1] = (second << 4 | third >> 2) & 0xFF
        target[index // 4 * 3 + 2] = (third << 6 | fourth) & 0xFF
    end_data(column, size)
    return FINE
