\set a random(1, 1000)
\set b random(1, 1000)
SELECT transfer(:a, :b, 1);
