# The text of scalars as PostgreSQL prints it (ISO dates, hex bytea), parsed.

cdef enum:
    MICROSECONDS = 1000000
    DAY_SECONDS = 86400

cdef struct Moment:         # a date, a time, or both
    int64_t days            # since 1970
    int64_t micros          # of the day
    int64_t zone_seconds    # east of Greenwich
    int infinity            # -1, 1: minus infinity, infinity

cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return 48 <= byte <= 57


cdef int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Days since 1970 in the proleptic Gregorian calendar; the year before 1 is 0."""
    cdef int64_t era, of_era, of_year
    if month <= 2:
        year -= 1
    era = (year if year >= 0 else year - 399) // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


cdef void date_of(int64_t days, int64_t* year, int64_t* month, int64_t* day) noexcept nogil:
    cdef int64_t era, of_era, year_of_era, of_year, shifted
    days += 719468
    era = (days if days >= 0 else days - 146096) // 146097
    of_era = days - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    day[0] = of_year - (153 * shifted + 2) // 5 + 1
    month[0] = shifted + 3 if shifted < 10 else shifted - 9
    year[0] = year_of_era + era * 400 + (1 if month[0] <= 2 else 0)


cdef inline bint read_digits(const uint8_t** at, const uint8_t* end, int least, int most,
                             int64_t* value) noexcept nogil:
    cdef int count = 0
    value[0] = 0
    while at[0] < end and count < most and is_digit(at[0][0]):
        value[0] = value[0] * 10 + (at[0][0] - 48)
        at[0] += 1
        count += 1
    return count >= least


cdef inline bint read_mark(const uint8_t** at, const uint8_t* end, uint8_t mark) noexcept nogil:
    if at[0] >= end or at[0][0] != mark:
        return False
    at[0] += 1
    return True


cdef bint read_date(const uint8_t** at, const uint8_t* end, int64_t* year, int64_t* month,
                    int64_t* day) noexcept nogil:
    return (read_digits(at, end, 4, 7, year) and read_mark(at, end, c"-")
            and read_digits(at, end, 2, 2, month) and read_mark(at, end, c"-")
            and read_digits(at, end, 2, 2, day)
            and 1 <= month[0] <= 12 and 1 <= day[0] <= 31)


cdef bint read_time(const uint8_t** at, const uint8_t* end, int64_t* micros) noexcept nogil:
    cdef int64_t hours, minutes, seconds, fraction = 0
    cdef const uint8_t* start
    if not (read_digits(at, end, 2, 2, &hours) and read_mark(at, end, c":")
            and read_digits(at, end, 2, 2, &minutes) and read_mark(at, end, c":")
            and read_digits(at, end, 2, 2, &seconds)):
        return False
    if hours > 24 or minutes > 59 or seconds > 60:
        return False
    if at[0] < end and at[0][0] == c".":
        at[0] += 1
        start = at[0]
        if not read_digits(at, end, 1, 6, &fraction):
            return False
        while at[0] - start < 6:
            fraction *= 10
            start -= 1
    micros[0] = ((hours * 60 + minutes) * 60 + seconds) * MICROSECONDS + fraction
    return True


cdef bint read_zone(const uint8_t** at, const uint8_t* end, int64_t* seconds) noexcept nogil:
    cdef int64_t hours, minutes = 0, more = 0
    cdef bint is_west
    if at[0] >= end or (at[0][0] != c"+" and at[0][0] != c"-"):
        return False
    is_west = at[0][0] == c"-"
    at[0] += 1
    if not read_digits(at, end, 2, 2, &hours):
        return False
    if read_mark(at, end, c":") and not read_digits(at, end, 2, 2, &minutes):
        return False
    if read_mark(at, end, c":") and not read_digits(at, end, 2, 2, &more):
        return False
    seconds[0] = (hours * 60 + minutes) * 60 + more
    if is_west:
        seconds[0] = -seconds[0]
    return True


cdef Status read_moment(const uint8_t* text, int64_t size, bint with_time, bint with_zone,
                        Moment* moment) noexcept nogil:
    """A date or a timestamp, as DateStyle ISO prints it: `0044-03-15 12:00:00+00 BC`."""
    cdef const uint8_t* at = text
    cdef const uint8_t* end = text + size
    cdef int64_t year, month, day
    memset(moment, 0, sizeof(Moment))
    if size == 8 and memcmp(text, b"infinity", 8) == 0:
        moment.infinity = 1
        return DONE
    if size == 9 and memcmp(text, b"-infinity", 9) == 0:
        moment.infinity = -1
        return DONE
    if not read_date(&at, end, &year, &month, &day):
        return BAD_TIME
    if with_time and not (read_mark(&at, end, c" ") and read_time(&at, end, &moment.micros)):
        return BAD_TIME
    if with_zone and not read_zone(&at, end, &moment.zone_seconds):
        return BAD_TIME
    if end - at == 3 and memcmp(at, b" BC", 3) == 0:
        year = 1 - year
        at = end
    if at != end:
        return BAD_TIME
    moment.days = days_of(year, month, day)
    return DONE


cdef inline bint micros_of(const Moment* moment, int64_t* micros) noexcept nogil:
    """Microseconds since 1970; false for the last decades of PostgreSQL's range, which 64 bits
    cannot count from 1970."""
    cdef int64_t days_max = 106751991  # of 2**63 microseconds
    if moment.days >= days_max or moment.days <= -days_max:
        return False
    micros[0] = moment.days * DAY_SECONDS * MICROSECONDS + moment.micros
    return True


cdef Status put_moment(Out* out, Moment* moment, int digits, bint is_utc) noexcept nogil:
    """ISO 8601 with so many digits of seconds, UTC with Z. Years have a sign if they need one."""
    cdef int64_t seconds, year, month, day, micros = moment.micros
    cdef uint8_t* to
    if moment.zone_seconds:
        micros -= moment.zone_seconds * MICROSECONDS
        while micros < 0:
            micros += <int64_t>DAY_SECONDS * MICROSECONDS
            moment.days -= 1
        while micros >= <int64_t>DAY_SECONDS * MICROSECONDS:
            micros -= <int64_t>DAY_SECONDS * MICROSECONDS
            moment.days += 1
    date_of(moment.days, &year, &month, &day)
    if not room(out, 48):
        return NO_MEMORY
    if year < 0 or year > 9999:
        put_byte(out, c"-" if year < 0 else c"+")
    if year < 0:
        year = -year
    if year > 9999:
        put_number(out, year)
        to = out.start + out.size
    else:
        to = two_digits(two_digits(out.start + out.size, year // 100), year % 100)
    to[0] = c"-"
    to = two_digits(to + 1, month)
    to[0] = c"-"
    to = two_digits(to + 1, day)
    to[0] = c"T"
    seconds = micros // MICROSECONDS
    micros %= MICROSECONDS
    to = two_digits(to + 1, seconds // 3600)
    to[0] = c":"
    to = two_digits(to + 1, seconds // 60 % 60)
    to[0] = c":"
    to = two_digits(to + 1, seconds % 60)
    if digits > 0:
        to[0] = c"."
        two_digits(two_digits(two_digits(to + 1, micros // 10000), micros // 100 % 100),
                   micros % 100)
        to += 1 + digits
    if is_utc:
        to[0] = c"Z"
        to += 1
    out.size = to - out.start
    return DONE


cdef Status put_zoned_time(Out* out, const uint8_t* text, int64_t size) noexcept nogil:
    """`12:34:56.7+02` as `12:34:56.7+02:00`: ISO 8601 wants minutes, and Z for UTC."""
    cdef const uint8_t* at = text
    cdef const uint8_t* end = text + size
    cdef const uint8_t* zone
    cdef int64_t micros, seconds
    if not read_time(&at, end, &micros):
        return BAD_TIME
    zone = at
    if not read_zone(&at, end, &seconds) or at != end:
        return BAD_TIME
    if put(out, text, zone - text) != DONE:
        return NO_MEMORY
    if seconds == 0:
        return put_byte(out, c"Z")
    if put(out, zone, end - zone) != DONE:
        return NO_MEMORY
    return put(out, b":00", 3) if end - zone == 3 else DONE


cdef bint is_integer(const uint8_t* text, int64_t size) noexcept nogil:
    cdef int64_t i
    cdef int64_t start = 1 if size > 1 and text[0] == c"-" else 0
    if size == 0 or size > 20 or (text[start] == c"0" and size > start + 1):
        return False
    for i in range(start, size):
        if not is_digit(text[i]):
            return False
    return True


cdef inline bint skip_digits(const uint8_t** at, const uint8_t* end) noexcept nogil:
    """At least one digit."""
    cdef const uint8_t* start = at[0]
    while at[0] < end and is_digit(at[0][0]):
        at[0] += 1
    return at[0] > start


cdef bint is_number(const uint8_t* text, int64_t size) noexcept nogil:
    """Whether JSON takes the text for a number: `-1.5e+20`."""
    cdef const uint8_t* at = text
    cdef const uint8_t* end = text + size
    if at < end and at[0] == c"-":
        at += 1
    if end - at > 1 and at[0] == c"0" and is_digit(at[1]):
        return False
    if not skip_digits(&at, end):
        return False
    if at < end and at[0] == c".":
        at += 1
        if not skip_digits(&at, end):
            return False
    if at < end and at[0] == c"e":
        at += 1
        if at < end and (at[0] == c"+" or at[0] == c"-"):
            at += 1
        if not skip_digits(&at, end):
            return False
    return at == end


cdef inline int hex_digit(uint8_t byte) noexcept nogil:
    if is_digit(byte):
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    return -1


cdef Status read_hex(Out* out, const uint8_t* text, int64_t size) noexcept nogil:
    """The bytes of `\\x00ff`, as bytea_output hex prints them."""
    cdef int64_t i
    cdef int high, low
    if size < 2 or size & 1 or text[0] != c"\\" or text[1] != c"x":
        return BAD_BYTES
    if not room(out, size // 2):
        return NO_MEMORY
    for i in range(2, size, 2):
        high, low = hex_digit(text[i]), hex_digit(text[i + 1])
        if high < 0 or low < 0:
            return BAD_BYTES
        out.start[out.size] = <uint8_t>(high << 4 | low)
        out.size += 1
    return DONE


cdef Status read_bits(Out* out, const uint8_t* text, int64_t size) noexcept nogil:
    """The bytes of `10110`, the last bit being the first of the first byte."""
    cdef int64_t i, count = (size + 7) // 8
    cdef uint8_t* to
    if not room(out, count):
        return NO_MEMORY
    to = out.start + out.size
    memset(to, 0, count)
    for i in range(size):
        if text[size - 1 - i] == c"1":
            to[i >> 3] |= 1 << (i & 7)
        elif text[size - 1 - i] != c"0":
            return BAD_BITS
    out.size += count
    return DONE
