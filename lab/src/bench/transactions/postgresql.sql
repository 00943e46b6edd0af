CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO accounts SELECT number, 1000 FROM generate_series(1, 1000) number;
CREATE FUNCTION balance(account bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE found_balance bigint;
BEGIN
    SELECT balance INTO found_balance FROM accounts WHERE id = account;
    IF NOT FOUND THEN RAISE EXCEPTION 'there is no account %', account; END IF;
    RETURN found_balance;
END $$;
CREATE FUNCTION transfer(payer bigint, payee bigint, amount bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE remaining bigint;
BEGIN
    IF amount < 0 THEN RAISE EXCEPTION 'a negative amount'; END IF;
    -- In one order, so that no two wait for each other.
    PERFORM 1 FROM accounts WHERE id = least(payer, payee) FOR UPDATE;
    PERFORM 1 FROM accounts WHERE id = greatest(payer, payee) FOR UPDATE;
    UPDATE accounts SET balance = balance - amount WHERE id = payer RETURNING balance INTO remaining;
    IF remaining < 0 THEN RAISE EXCEPTION 'account % has only %', payer, remaining + amount; END IF;
    UPDATE accounts SET balance = balance + amount WHERE id = payee;
    RETURN remaining;
END $$;
