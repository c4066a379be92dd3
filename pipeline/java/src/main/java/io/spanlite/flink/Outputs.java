package io.spanlite.flink;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import org.apache.flink.api.common.functions.FilterFunction;
import org.apache.flink.api.common.serialization.Encoder;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.fs.Path;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.streaming.api.functions.sink.filesystem.BucketAssigner;
import org.apache.flink.streaming.api.functions.sink.filesystem.OutputFileConfig;
import org.apache.flink.streaming.api.functions.sink.filesystem.PartFileInfo;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.SimpleVersionedStringSerializer;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.CheckpointRollingPolicy;
import org.apache.flink.types.Row;

/** What leaves the Python functions: Row(kind, bytes). Kind 0 is a finished file for the archive: path, newline, content. */
public final class Outputs {
    public static final int FILE = 0;
    public static final int DEAD_LETTER = 1;
    public static final int TABLE_ROWS = 2;

    private Outputs() {}

    public static FilterFunction<Row> only(int kind) {
        return new Only(kind);
    }

    public static SerializationSchema<Row> payload() {
        return new Payload();
    }

    /** Commits each row as one file under the root, with Flink's two-phase commit. */
    public static FileSink<Row> archive(String root, String prefix) {
        return FileSink.<Row>forRowFormat(new Path(root), new Content())
                .withBucketAssigner(new Folder())
                .withRollingPolicy(new OneRowAFile())
                .withOutputFileConfig(new OutputFileConfig(prefix, ".parquet"))
                .build();
    }

    private static byte[] bytes(Row row) {
        return (byte[]) row.getField(1);
    }

    private static int endOfPath(byte[] framed) {
        int at = 0;
        while (framed[at] != '\n') {
            at++;
        }
        return at;
    }

    private record Only(int kind) implements FilterFunction<Row> {
        @Override
        public boolean filter(Row row) {
            return (Integer) row.getField(0) == kind;
        }
    }

    private static final class Payload implements SerializationSchema<Row> {
        private static final long serialVersionUID = 1L;

        @Override
        public byte[] serialize(Row row) {
            return bytes(row);
        }
    }

    private static final class Content implements Encoder<Row> {
        private static final long serialVersionUID = 1L;

        @Override
        public void encode(Row row, OutputStream out) throws IOException {
            byte[] framed = bytes(row);
            int start = endOfPath(framed) + 1;
            out.write(framed, start, framed.length - start);
        }
    }

    private static final class Folder implements BucketAssigner<Row, String> {
        private static final long serialVersionUID = 1L;

        @Override
        public String getBucketId(Row row, Context context) {
            byte[] framed = bytes(row);
            return new String(framed, 0, endOfPath(framed), StandardCharsets.UTF_8);
        }

        @Override
        public SimpleVersionedSerializer<String> getSerializer() {
            return SimpleVersionedStringSerializer.INSTANCE;
        }
    }

    private static final class OneRowAFile extends CheckpointRollingPolicy<Row, String> {
        private static final long serialVersionUID = 1L;

        @Override
        public boolean shouldRollOnEvent(PartFileInfo<String> part, Row row) {
            return true;
        }

        @Override
        public boolean shouldRollOnProcessingTime(PartFileInfo<String> part, long now) {
            return false;
        }
    }
}
