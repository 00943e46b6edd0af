use super::*;

#[test]
fn linpack_does_the_work_that_is_counted() {
    #[derive(Default)]
    struct Counts(u64, u64);
    impl Memory for Counts {
        fn read(&mut self, _: u64) {
            self.0 += 1;
        }
        fn write(&mut self, _: u64) {
            self.1 += 1;
        }
        fn compute(&mut self, _: f64) {}
    }
    let linpack = Linpack { n: 100, lda: 201, element: 4 };
    let mut counts = Counts::default();
    linpack.run(Cycles { multiply_add: 0.0, move_one: 0.0, start: 0.0 }, &mut counts);
    // Each multiplication and addition writes one element; other writes are few.
    let elements = linpack.work() / 2.0;
    assert!((counts.1 as f64 / elements - 1.0).abs() < 0.05, "{} writes for {elements}", counts.1);
}
