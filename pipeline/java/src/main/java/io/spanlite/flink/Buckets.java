package io.spanlite.flink;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.types.Row;

/** Which bucket a message belongs to, and which Flink key stands for a bucket. */
public final class Buckets {
    private static final long SEED = 0x5350414E4C495445L;

    private Buckets() {}

    /**
     * One Flink key per bucket, chosen so that bucket b falls into key group b * maxParallelism / buckets: every
     * subtask then carries the same number of buckets, where plain hashing would leave some with twice as many.
     */
    public static int[] flinkKeys(int buckets, int maxParallelism) {
        int[] keys = new int[buckets];
        int candidate = 0;
        for (int bucket = 0; bucket < buckets; bucket++) {
            int wanted = (int) ((long) bucket * maxParallelism / buckets);
            while (KeyGroupRangeAssignment.assignToKeyGroup(Row.of(candidate), maxParallelism) != wanted) {
                candidate++;
            }
            keys[bucket] = candidate++;
        }
        return keys;
    }

    /** The bucket of a SpanBatch (from its header) or of a SpanLite (from its trace id); 0 where unreadable. */
    public static int ofMessage(byte[] value, int buckets) {
        try {
            return (value.length > 0 && value[0] == 0x0A) ? ofBatch(value, buckets) : ofSpan(value, buckets);
        } catch (RuntimeException unreadable) {
            return 0; // Python reads it again and says what is wrong with it.
        }
    }

    private static int ofBatch(byte[] value, int buckets) {
        ByteBuffer in = ByteBuffer.wrap(value, 1, value.length - 1).order(ByteOrder.LITTLE_ENDIAN);
        int size = (int) varint(in);
        in.limit(in.position() + size);
        return (int) field(in, 2) & (buckets - 1);
    }

    private static int ofSpan(byte[] value, int buckets) {
        ByteBuffer in = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
        long low = field(in, 1);
        in.rewind();
        long high = field(in, 6);
        return (int) mix(mix(low + SEED) ^ high) & (buckets - 1);
    }

    /** The last value of a numeric field, 0 where it is absent. */
    private static long field(ByteBuffer in, int number) {
        long found = 0;
        while (in.hasRemaining()) {
            long tag = varint(in);
            long value = 0;
            switch ((int) tag & 7) {
                case 0 -> value = varint(in);
                case 1 -> value = in.getLong();
                case 2 -> {
                    int size = (int) varint(in); // Before asking for the position: it moves it.
                    in.position(in.position() + size);
                }
                case 5 -> value = in.getInt();
                default -> throw new IllegalArgumentException("wire type");
            }
            if (tag >>> 3 == number) {
                found = value;
            }
        }
        return found;
    }

    private static long varint(ByteBuffer in) {
        long value = 0;
        for (int shift = 0; shift < 70; shift += 7) {
            byte part = in.get();
            value |= (long) (part & 0x7F) << shift;
            if (part >= 0) {
                return value;
            }
        }
        throw new IllegalArgumentException("varint");
    }

    private static long mix(long x) {
        x = (x ^ (x >>> 30)) * 0xBF58476D1CE4E5B9L;
        x = (x ^ (x >>> 27)) * 0x94D049BB133111EBL;
        return x ^ (x >>> 31);
    }
}
