# Envelopes: the value of a record around its row, in JSON.


cdef class Envelope:
    """Writes keys and values; the base of both formats, with the table's types."""

    cdef Node* nodes            # the columns' first, then those that they consist of
    cdef int columns
    cdef Scratch scratch
    cdef list keep              # what the nodes point to
    cdef object settings
    cdef object table
    cdef int64_t timestamp_ms
    cdef const Field* bad_field

    def __cinit__(self, table, settings, value_types, *of_the_format):
        self.table, self.settings = table, settings
        self.columns = len(value_types)
        self.keep = []
        waiting = list(zip(value_types, [column.name for column in table.columns], strict=True))
        total = sum(count_nodes(it) for it in value_types)
        self.nodes = <Node*>calloc(max(total, 1), sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError()
        at = 0
        while at < len(waiting):
            value_type, name = waiting[at]
            self._fill(&self.nodes[<int>at], value_type, name, len(waiting))
            names = value_type.names or ("",) * len(value_type.items)
            waiting += zip(value_type.items, names, strict=True)
            at += 1

    cdef int _fill(self, Node* node, value_type, str name, int first_item) except -1:
        label = json_text(name) + b":"
        self.keep.append(label)
        node.kind = value_type.kind
        node.first_item, node.items = first_item, len(value_type.items)
        node.scale, node.is_wide = value_type.scale, value_type.is_wide
        node.delimiter = ord(value_type.delimiter)
        node.label, node.label_size = label, len(label)
        return 0

    def __dealloc__(self):
        cdef int i
        free(self.nodes)
        for i in range(DEPTH_MAX + 1):
            free(self.scratch.at_depth[i].start)
        free(self.scratch.spare.start)

    cdef Status put_key(self, Out* out, const Field* fields, const int* key_columns, int keys,
                        int* bad_column):
        return self.header_key(out, fields, key_columns, keys, bad_column)

    cdef Status header_key(self, Out* out, const Field* fields, const int* key_columns, int keys,
                           int* bad_column):
        """A key as a JSON object, also in headers of Avro records."""
        cdef Status status = put_byte(out, c"{")
        cdef int i
        for i in range(keys):
            if status == DONE and i:
                status = put_byte(out, c",")
            if status == DONE and fields[key_columns[i]].kind == UNCHANGED:
                bad_column[0] = key_columns[i]
                self.bad_field = &fields[key_columns[i]]
                return NO_KEY_VALUE
            if status == DONE:
                status = self._json_field(out, key_columns[i], &fields[key_columns[i]], bad_column)
            if status != DONE:
                return status
        return put_byte(out, c"}")

    cdef inline Status _json_field(self, Out* out, int column, const Field* field, int* bad_column):
        """`"name":value`."""
        cdef const Node* node = &self.nodes[column]
        cdef Status status = put(out, node.label, node.label_size)
        if status != DONE:
            return status
        if field.kind == PRESENT:
            status = json_value(out, self.nodes, column, field.text, field.size, &self.scratch, 0)
        elif field.kind == IS_NULL:
            status = put(out, b"null", 4)
        else:
            status = self.put_unavailable(out, column)
        if status != DONE:
            bad_column[0] = column
            self.bad_field = field
        return status

    cdef Status put_unavailable(self, Out* out, int column):
        return NO_KEY_VALUE

    cdef int start_transaction(self, StreamContext context) except -1:
        raise NotImplementedError

    cdef int start_snapshot(self, str flag, lsn, xid, int64_t snapshot_time_us,
                            int64_t now_us) except -1:
        raise NotImplementedError

    cdef Status put(self, Out* out, uint8_t operation, const Field* before, const Field* after,
                    uint64_t lsn, int64_t total_order, int64_t order, int* bad_column):
        return BAD_TUPLE

    cdef Status put_snapshot(self, Out* out, const Field* row, int* bad_column):
        return BAD_TUPLE


cdef int count_nodes(value_type) except -1:
    return 1 + sum([count_nodes(it) for it in value_type.items])


cdef bytes json_text(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


cdef class JsonEnvelope(Envelope):
    """Debezium's envelope, or the flat form, as JSON."""

    cdef bint is_flat
    cdef bint has_transaction
    cdef bytes head             # of the source
    cdef bytes database
    cdef bytes names            # of the schema and the table
    cdef list unavailable       # by column
    cdef bytes to_event_lsn     # from the end of the row to the LSN in `sequence`
    cdef bytes to_lsn           # from there to `lsn`
    cdef bytes to_orders        # from there to `total_order`, or to `op`
    cdef bytes times            # from `ts_ms` to the end
    cdef bytes snapshot_end     # from the end of the row

    def __cinit__(self, table, settings, value_types, unavailable, str version, str connector):
        self.is_flat = settings.shape == "flat"
        self.has_transaction = settings.transaction_metadata
        self.unavailable = unavailable
        self.head = (b',"source":{"version":%s,"connector":%s,"name":%s,"ts_ms":' % (
            json_text(version), json_text(connector), json_text(settings.server_name)))
        self.database = json_text(settings.database)
        self.names = b'"schema":%s,"table":%s' % (json_text(table.schema), json_text(table.name))

    cdef int start_transaction(self, StreamContext context) except -1:
        cdef int64_t time_us = context.commit_time_us
        last = context.last_commit_lsn
        self.timestamp_ms = time_us // 1000
        if self.is_flat:
            return 0
        self.to_event_lsn = b'%s%d,"snapshot":"false","db":%s,"sequence":"[%s,\\"' % (
            self.head, time_us // 1000, self.database,
            b"null" if last is None else b'\\"%d\\"' % last)
        self.to_lsn = b'\\"]","ts_us":%d,"ts_ns":%d,%s,"txId":%d,"lsn":' % (
            time_us, time_us * 1000, self.names, context.xid)
        self.to_orders = b',"xmin":null,"origin":null,"origin_lsn":null},"transaction":'
        if self.has_transaction:
            self.to_orders += b'{"id":"%d:%d","total_order":' % (context.xid, context.commit_lsn)
        else:
            self.to_orders += b'null,"op":"'
        self.times = event_times(context.now_us)
        return 0

    cdef int start_snapshot(self, str flag, lsn, xid, int64_t snapshot_time_us,
                            int64_t now_us) except -1:
        self.timestamp_ms = snapshot_time_us // 1000
        if self.is_flat:
            return 0
        sequence = json_text(json_text([None, None if lsn is None else str(lsn)]).decode())
        self.snapshot_end = (
            b'%s%d,"snapshot":%s,"db":%s,"sequence":%s,"ts_us":%d,"ts_ns":%d,%s,"txId":%s,"lsn":%s,'
            b'"xmin":null,"origin":null,"origin_lsn":null},"transaction":null,"op":"r%s' % (
                self.head, snapshot_time_us // 1000, json_text(flag), self.database, sequence,
                snapshot_time_us, snapshot_time_us * 1000, self.names, json_text(xid),
                json_text(lsn), event_times(now_us)))
        return 0

    cdef Status put(self, Out* out, uint8_t operation, const Field* before, const Field* after,
                    uint64_t lsn, int64_t total_order, int64_t order, int* bad_column):
        cdef Status status
        if self.is_flat:
            return self._put_flat(out, after if after != NULL else before, after == NULL,
                                  bad_column)
        status = put(out, b'{"before":', 10)
        if status == DONE:
            status = self._put_row(out, before, bad_column)
        if status == DONE:
            status = put(out, b',"after":', 9)
        if status == DONE:
            status = self._put_row(out, after, bad_column)
        if status != DONE:
            return status
        if put_bytes(out, self.to_event_lsn) != DONE or put_number(out, <int64_t>lsn) != DONE:
            return NO_MEMORY
        if put_bytes(out, self.to_lsn) != DONE or put_number(out, <int64_t>lsn) != DONE:
            return NO_MEMORY
        if put_bytes(out, self.to_orders) != DONE:
            return NO_MEMORY
        if self.has_transaction:
            put_number(out, total_order)
            put(out, b',"data_collection_order":', 25)
            put_number(out, order)
            put(out, b'},"op":"', 8)
        put_byte(out, operation)
        return put_bytes(out, self.times)

    cdef Status put_snapshot(self, Out* out, const Field* row, int* bad_column):
        cdef Status status
        if self.is_flat:
            return self._put_flat(out, row, False, bad_column)
        status = put(out, b'{"before":null,"after":', 23)
        if status == DONE:
            status = self._put_row(out, row, bad_column)
        return put_bytes(out, self.snapshot_end) if status == DONE else status

    cdef Status _put_flat(self, Out* out, const Field* row, bint is_deleted, int* bad_column):
        cdef Status status = self._put_row(out, row, bad_column)
        if status != DONE:
            return status
        out.size -= 1                           # the closing brace
        if self.columns:
            put_byte(out, c",")
        put(out, b'"__deleted":"', 13)
        return put(out, b'true"}', 6) if is_deleted else put(out, b'false"}', 7)

    cdef Status _put_row(self, Out* out, const Field* row, int* bad_column):
        cdef Status status
        cdef int i
        if row == NULL:
            return put(out, b"null", 4)
        status = put_byte(out, c"{")
        for i in range(self.columns):
            if status == DONE and i:
                status = put_byte(out, c",")
            if status == DONE:
                status = self._json_field(out, i, &row[i], bad_column)
            if status != DONE:
                return status
        return put_byte(out, c"}")

    cdef Status put_unavailable(self, Out* out, int column):
        return put_bytes(out, <bytes>self.unavailable[column])


cdef bytes event_times(int64_t now_us):
    return b'","ts_ms":%d,"ts_us":%d,"ts_ns":%d}' % (now_us // 1000, now_us, now_us * 1000)
