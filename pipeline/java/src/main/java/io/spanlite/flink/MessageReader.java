package io.spanlite.flink;

import java.nio.ByteBuffer;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.kafka.shaded.org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/**
 * A Kafka record as (Flink key of its bucket, frame), so that it can be shuffled without a Python stage before it.
 * Frame, big-endian: int32 bucket, int32 partition, int64 offset, int64 timestamp in ms, then the message as it is.
 */
public final class MessageReader implements KafkaRecordDeserializationSchema<Row> {
    private static final long serialVersionUID = 1L;
    private static final byte[] NOTHING = new byte[0];
    static final int FRAME_BYTES = 24;

    private final int buckets;
    private final int[] keys;

    public MessageReader(int buckets, int maxParallelism) {
        this.buckets = buckets;
        this.keys = Buckets.flinkKeys(buckets, maxParallelism);
    }

    @Override
    public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Row> out) {
        byte[] value = record.value() == null ? NOTHING : record.value();
        int bucket = Buckets.ofMessage(value, buckets);
        byte[] frame = frame(bucket, record.partition(), record.offset(), record.timestamp(), value);
        out.collect(Row.of(keys[bucket], frame));
    }

    /** A frame of no partition and without a message; see {@link WakeUp}. */
    static byte[] wakeUp(int bucket) {
        return frame(bucket, -1, 0, 0, NOTHING);
    }

    private static byte[] frame(int bucket, int partition, long offset, long timestampMs, byte[] value) {
        return ByteBuffer.allocate(FRAME_BYTES + value.length)
                .putInt(bucket)
                .putInt(partition)
                .putLong(offset)
                .putLong(timestampMs)
                .put(value)
                .array();
    }

    @Override
    public TypeInformation<Row> getProducedType() {
        return Types.ROW(Types.INT, PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);
    }
}
