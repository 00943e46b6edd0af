use super::*;

const PROCESSOR: ProcessorId = ProcessorId(1);
const JOB: JobId = JobId(7);

fn pair(ticks: u64, ns: u64) -> ClockPair {
    ClockPair { ticks, now: Instant::from_ns(ns) }
}

fn tracer(mode: Mode, words: usize) -> (Arc<Tracer>, TraceMemory) {
    let memory = private_memory(words);
    (Arc::new(traced(mode, memory)), memory)
}

fn traced(mode: Mode, memory: TraceMemory) -> Tracer {
    let tracer = Tracer::new(mode, 2, memory, 5);
    tracer.note_clock(pair(1000, 0));
    tracer
}

fn nobody_asks() -> u64 {
    panic!("nobody asks for the time")
}

fn read(memory: TraceMemory) -> Trace {
    Trace::read(memory).expect("a trace")
}

#[test]
fn what_was_recorded_is_read_in_order_of_time() {
    let (tracer, memory) = tracer(Mode::Direct, 10_000);
    let (one, other) = (Recorder::new(&tracer, ProcessorId(0)), Recorder::new(&tracer, PROCESSOR));
    tracer.note_clock(pair(3000, 1000));
    one.set_stamp(1400);
    one.moment(Event::CacheHit, JOB, 9, 3);
    other.set_stamp(1200);
    other.moment(Event::CacheMiss, JOB, 1 << 40, 2);
    other.moment(Event::ConnectionBegun, JobId(8), 4, 0);
    let began = one.begin(Event::NbdRead, JOB, || 2000);
    one.end(began, Event::NbdRead, JOB, 4096, 512, || 2600);
    let trace = read(memory);
    let seen: Vec<_> = trace.moments.iter().map(|m| (m.at.ns(), m.took.as_nanos(), m.record.event)).collect();
    assert_eq!(
        seen,
        [
            (100, 0, Event::CacheMiss),
            (100, 0, Event::ConnectionBegun),
            (200, 0, Event::CacheHit),
            (800, 300, Event::NbdRead)
        ]
    );
    let read = trace.moments[3].record;
    assert_eq!((read.processor, read.job, read.a, read.b, read.part), (0, 7, 4096, 512, Part::Whole));
    assert_eq!((trace.moments[0].record.processor, trace.mode, trace.overwritten), (1, Mode::Direct, 0));
    assert_eq!((trace.process, trace.began_ns), (std::process::id(), 5));
}

#[test]
fn a_ring_that_is_full_keeps_the_latest() {
    let (tracer, memory) = tracer(Mode::Direct, 1000);
    let recorder = Recorder::new(&tracer, PROCESSOR);
    for number in 0..1000 {
        recorder.set_stamp(1000 + number);
        recorder.moment(Event::CacheHit, JOB, number, 0);
    }
    let trace = read(memory);
    let numbers: Vec<u64> = trace.moments.iter().map(|moment| moment.record.a).collect();
    assert_eq!(numbers.last(), Some(&999));
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
    assert_eq!(trace.overwritten, 1000 - numbers.len() as u64);
}

#[test]
fn off_records_nothing_and_unthinned_both_ends_and_the_mode_can_be_set() {
    let (tracer, memory) = tracer(Mode::Off, 10_000);
    let recorder = Recorder::new(&tracer, PROCESSOR);
    recorder.moment(Event::CacheHit, JOB, 0, 0);
    let never = recorder.begin(Event::NbdRead, JOB, nobody_asks);
    recorder.end(never, Event::NbdRead, JOB, 0, 0, nobody_asks);
    assert_eq!(read(memory).moments, []);
    tracer.set_mode(Mode::Unthinned);
    let began = recorder.begin(Event::NbdRead, JOB, || 1100);
    recorder.end(began, Event::NbdRead, JOB, 1, 2, || 1200);
    let parts: Vec<_> = read(memory).moments.iter().map(|moment| moment.record.part).collect();
    assert_eq!(parts, [Part::Begin, Part::End]);
    assert_eq!(read(memory).mode, Mode::Unthinned);
}

#[test]
fn in_place_a_moment_has_the_stamp_of_its_batch_and_centrally_its_own() {
    for (mode, at_ns) in [(Mode::Direct, 100), (Mode::Central, 300), (Mode::Unthinned, 300)] {
        let (tracer, memory) = tracer(mode, 10_000);
        tracer.note_clock(pair(3000, 1000));
        let recorder = Recorder::new(&tracer, PROCESSOR);
        recorder.set_stamp(1200);
        recorder.moment_by(Event::CacheHit, JOB, 0, 0, || 1600);
        let stamps: Vec<u64> = read(memory).moments.iter().map(|moment| moment.at.ns()).collect();
        assert_eq!(stamps, [at_ns], "{mode:?}");
    }
}

#[test]
fn one_that_reads_while_others_write_sees_whole_records_only() {
    let (tracer, memory) = tracer(Mode::Direct, 600);
    std::thread::scope(|scope| {
        for processor in 0..2 {
            let tracer = Arc::clone(&tracer);
            scope.spawn(move || {
                let recorder = Recorder::new(&tracer, ProcessorId(processor));
                for number in 0..200_000_u64 {
                    recorder.set_stamp(number);
                    // All words hold the same number; every tenth record is central.
                    let event = if number % 10 == 0 { Event::CacheSized } else { Event::CacheHit };
                    recorder.moment(event, JobId(number as u32), number, number as u32);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..300 {
                for moment in read(memory).moments {
                    let Record { stamp, job, a, b, .. } = moment.record;
                    assert!(stamp == a && u64::from(job) == a && u64::from(b) == a, "{:?}", moment.record);
                }
            }
        });
    });
    assert!(!read(memory).moments.is_empty());
}

#[test]
fn what_is_no_trace_or_damaged_is_refused() {
    let refused = |words: &[u64]| {
        let words: Vec<AtomicU64> = words.iter().map(|word| AtomicU64::new(*word)).collect();
        Trace::read(&words).expect_err("no trace")
    };
    assert_eq!(refused(&[]), ReadError::NoTrace);
    assert_eq!(refused(&[0; 100]), ReadError::NoTrace);
    let (_tracer, memory) = tracer(Mode::Direct, 1000);
    let good: Vec<u64> = memory.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    assert_eq!(refused(&good[..500]), ReadError::Damaged("it is shorter than its head says"));
    for (place, value) in
        [(head::PROCESSORS, u64::MAX), (head::RECORDS, 3), (head::RECORDS, 0), (head::RECORDS, 1 << 40)]
    {
        let mut bad = good.clone();
        bad[place] = value;
        assert_eq!(refused(&bad), ReadError::Damaged("its head has impossible numbers"));
    }
    let mut other = good;
    other[head::TYPES] += 1;
    assert!(matches!(refused(&other), ReadError::OtherVersion { .. }));
}

#[test]
fn too_little_memory_is_none() {
    let tracer = Tracer::new(Mode::Direct, 2, private_memory(100), 0);
    assert_eq!(tracer.mode(), Mode::Off);
    tracer.set_mode(Mode::Direct);
    assert_eq!(tracer.mode(), Mode::Off);
}
