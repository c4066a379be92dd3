package io.spanlite.flink;

import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.runtime.tasks.ProcessingTimeService;
import org.apache.flink.types.Row;

/**
 * Passes rows on, and sends each bucket one frame without a message whenever the job starts or is restored.
 *
 * Why: PyFlink hands timers to Flink some time after the bundle that set them, also where a snapshot came in
 * between (BeamPythonFunctionRunner.unregisteredTimers; only a watermark waits for it). So a restored bucket may
 * have state and no timer, and would sleep until a message of its own comes.
 */
public final class WakeUp extends AbstractStreamOperator<Row> implements OneInputStreamOperator<Row, Row> {
    private static final long serialVersionUID = 1L;

    private final int[] keys;

    public WakeUp(int buckets, int maxParallelism) {
        this.keys = Buckets.flinkKeys(buckets, maxParallelism);
    }

    @Override
    public void open() throws Exception {
        super.open();
        // Not here: the operators after this one may not be open yet.
        ProcessingTimeService time = getProcessingTimeService();
        time.registerTimer(time.getCurrentProcessingTime(), now -> wake());
    }

    private void wake() {
        int subtask = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
        int subtasks = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
        for (int bucket = subtask; bucket < keys.length; bucket += subtasks) {
            output.collect(new StreamRecord<>(Row.of(keys[bucket], MessageReader.wakeUp(bucket))));
        }
    }

    @Override
    public void processElement(StreamRecord<Row> element) {
        output.collect(element);
    }
}
