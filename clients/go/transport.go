// Package onetake makes HTTP calls that are safe to retry: one Idempotency-Key per intent, full
// jitter, a retry budget, a deadline, and errors that say what to do.
package onetake

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Limits are the limits of one call. Zero values are replaced by those of DefaultLimits.
type Limits struct {
	// Deadline is the time for the whole call. It is sent as X-Request-Timeout-Ms.
	Deadline time.Duration
	// AttemptTimeout is the time for one attempt.
	AttemptTimeout time.Duration
	// AttemptsMax is the largest number of attempts, the first one included.
	AttemptsMax int
	// BackoffBase is the largest delay before the first retry. It doubles with each retry.
	BackoffBase time.Duration
	// BackoffMax is the largest delay before any retry.
	BackoffMax time.Duration
}

// DefaultLimits are the limits of a Transport that sets none.
var DefaultLimits = Limits{
	Deadline:       30 * time.Second,
	AttemptTimeout: 10 * time.Second,
	AttemptsMax:    8,
	BackoffBase:    200 * time.Millisecond,
	BackoffMax:     5 * time.Second,
}

// The time between two polls, if the server does not name one.
const pollPause = time.Second

// Budget is a token bucket for retries. All calls of a transport share it.
type Budget struct {
	mutex                   sync.Mutex
	tokens, reserve, earned float64
}

// NewBudget makes a budget. Each call earns ratio retries: 0.1 means that retries are at most 10 %
// of calls. At most reserve retries are saved up, and initial are there at the start.
func NewBudget(reserve, ratio, initial float64) *Budget {
	return &Budget{tokens: initial, reserve: reserve, earned: ratio}
}

func (b *Budget) earn() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.tokens += b.earned
	if b.tokens > b.reserve {
		b.tokens = b.reserve
	}
}

func (b *Budget) spend() bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	// Sums of 0.1 are a little less than a whole number.
	if b.tokens < 1-1e-9 {
		return false
	}
	b.tokens--
	return true
}

// Clock is the time and the randomness of a transport. Tests replace it.
type Clock interface {
	// Monotonic returns the time of a clock that never goes back. Deadlines are measured with it.
	Monotonic() time.Duration
	// Now returns the time of day. Only dates in headers and new keys depend on it.
	Now() time.Time
	// Sleep waits, or returns the error of the context.
	Sleep(ctx context.Context, delay time.Duration) error
	// AfterFunc calls f after a delay, unless the returned function is called first.
	AfterFunc(delay time.Duration, f func()) (stop func())
	// Random returns a number from 0 to 1.
	Random() float64
}

// Event is what a call does. For logs and traces; it holds no key, header or body.
type Event struct {
	// Type is "attempt", "retry", "poll" or "end".
	Type    string
	Attempt int
	// Context is that of the request, so that the span of the caller is in it.
	Context context.Context
	// Status is the status of the answer, of a retry or of an end. It is 0 if there was none.
	Status int
	// Delay is the delay before the next attempt, of a retry.
	Delay time.Duration
	// Err is the kind of the error, at the end of a call without a result.
	Err error
}

// Transport is an http.RoundTripper. POST, PUT, PATCH and DELETE get a key and are retried; other
// requests pass through unchanged. The zero value is ready to use.
type Transport struct {
	// Base sends the requests. The default is http.DefaultTransport.
	Base http.RoundTripper
	// Limits are the limits of each call.
	Limits Limits
	// Budget is shared by all calls. The default has a reserve of 10 and a ratio of 0.1.
	Budget *Budget
	// Header returns headers that are made for each attempt, such as a credential.
	Header func() http.Header
	// Observe is called for each attempt, retry, poll and end of a call.
	Observe func(Event)
	// ErrorOnRefusal returns ErrRefused for a refusal (4xx) in place of the response.
	ErrorOnRefusal bool
	// Clock is the time and the randomness. The default is that of the system.
	Clock Clock

	once   sync.Once
	budget *Budget
}

// Outcome is what is known about a call, beside its response.
type Outcome struct {
	Key string
	// Replayed is true if the operation had run before, and this is its recorded response.
	Replayed bool
	// Reference is the name of the operation for support.
	Reference string
	Attempts  int
}

type outcomeKey struct{}

// OutcomeOf returns the outcome of a call. It returns false if the call had no key.
func OutcomeOf(response *http.Response) (Outcome, bool) {
	if response == nil || response.Request == nil {
		return Outcome{}, false
	}
	outcome, ok := response.Request.Context().Value(outcomeKey{}).(Outcome)
	return outcome, ok
}

// RoundTrip sends a request, with retries if its method has a key.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	switch request.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return t.base().RoundTrip(request)
	}
	if request.Body != nil {
		// Attempts read the body through GetBody.
		defer request.Body.Close()
		if request.Body != http.NoBody && request.GetBody == nil {
			return nil, ErrBodyNotReplayable
		}
	}
	t.once.Do(func() {
		t.budget = t.Budget
		if t.budget == nil {
			t.budget = NewBudget(10, 0.1, 10)
		}
	})
	clock := t.clock()
	key := request.Header.Get(KeyHeader)
	if key == "" {
		key = newKey(clock.Now())
	} else if err := CheckKey(key); err != nil {
		return nil, err
	}
	limits := t.limits()
	deadline := limits.Deadline
	if end, ok := request.Context().Deadline(); ok {
		deadline = shorter(deadline, time.Until(end))
	}
	c := &call{transport: t, request: request, key: key, clock: clock, limits: limits}
	c.deadline = clock.Monotonic() + deadline
	return c.run()
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

func (t *Transport) clock() Clock {
	if t.Clock != nil {
		return t.Clock
	}
	return systemClock{}
}

func (t *Transport) limits() Limits {
	limits := t.Limits
	if limits.Deadline <= 0 {
		limits.Deadline = DefaultLimits.Deadline
	}
	if limits.AttemptTimeout <= 0 {
		limits.AttemptTimeout = DefaultLimits.AttemptTimeout
	}
	if limits.AttemptsMax <= 0 {
		limits.AttemptsMax = DefaultLimits.AttemptsMax
	}
	if limits.BackoffBase <= 0 {
		limits.BackoffBase = DefaultLimits.BackoffBase
	}
	if limits.BackoffMax <= 0 {
		limits.BackoffMax = DefaultLimits.BackoffMax
	}
	return limits
}

// call is one call: attempts, delays and polls.
type call struct {
	transport *Transport
	request   *http.Request
	key       string
	clock     Clock
	limits    Limits
	deadline  time.Duration
	attempts  int
}

// tried is the result of one request: an answer, or the error of the connection.
type tried struct {
	answer *answer
	cause  error
}

func (t tried) status() int {
	if t.answer == nil {
		return 0
	}
	return t.answer.response.StatusCode
}

func (c *call) run() (*http.Response, error) {
	c.transport.budget.earn()
	for {
		c.attempts++
		c.observe(Event{Type: "attempt", Attempt: c.attempts})
		millis := c.left().Milliseconds()
		if millis < 1 {
			millis = 1
		}
		last, err := c.try("", http.Header{
			KeyHeader:              {c.key},
			"X-Request-Timeout-Ms": {strconv.FormatInt(millis, 10)},
		})
		if err != nil {
			return nil, err
		}
		decided := unanswered
		if last.answer != nil {
			decided = verdictOf(last.answer)
		}
		switch decided.action {
		case poll:
			return c.poll(decided.handle, last)
		case retry:
			if err := c.backOff(decided.kind, last); err != nil {
				return nil, err
			}
		default:
			return c.end(decided, last)
		}
	}
}

// backOff waits before the next attempt, or ends the call if a limit is reached.
func (c *call) backOff(kind error, last tried) error {
	backoff := c.limits.BackoffMax
	// More doublings than this would overflow, and any maximum is shorter.
	if doublings := c.attempts - 1; doublings < 30 {
		backoff = shorter(backoff, c.limits.BackoffBase<<doublings)
	}
	delay := time.Duration(c.clock.Random() * float64(backoff))
	if last.answer != nil {
		delay += last.answer.wait(c.clock.Now())
	}
	switch {
	case c.attempts >= c.limits.AttemptsMax:
		return c.failure(kind, last, EndAttempts)
	case delay >= c.left():
		return c.failure(kind, last, EndDeadline)
	case !c.transport.budget.spend():
		return c.failure(kind, last, EndBudget)
	}
	c.observe(Event{Type: "retry", Attempt: c.attempts, Delay: delay, Status: last.status()})
	return c.clock.Sleep(c.request.Context(), delay)
}

// poll asks a handle until the outcome is there. The operation itself is not sent again.
func (c *call) poll(handle string, last tried) (*http.Response, error) {
	for {
		var asked time.Duration
		if last.answer != nil {
			asked = last.answer.wait(c.clock.Now())
		}
		if asked == 0 {
			asked = pollPause
		}
		delay := time.Duration(c.clock.Random()*float64(c.limits.BackoffBase)) + asked
		if delay >= c.left() {
			return nil, c.failure(ErrInProgress, last, EndDeadline)
		}
		if err := c.clock.Sleep(c.request.Context(), delay); err != nil {
			return nil, err
		}
		c.observe(Event{Type: "poll", Attempt: c.attempts})
		var err error
		if last, err = c.try(handle, nil); err != nil {
			return nil, err
		}
		decided := unanswered
		if last.answer != nil {
			decided = verdictOfPoll(last.answer)
		}
		if decided.action != retry {
			return c.end(decided, last)
		}
	}
}

// try sends one request within the time for an attempt. Its error is that of the caller's context,
// or of the body.
func (c *call) try(handle string, headers http.Header) (tried, error) {
	ctx, cancel := context.WithCancel(c.request.Context())
	defer cancel()
	request := c.request.Clone(ctx)
	if handle != "" {
		location, err := c.request.URL.Parse(handle)
		// Credentials go to the server of the operation only.
		if err != nil || location.Scheme != c.request.URL.Scheme || location.Host != c.request.URL.Host {
			return tried{cause: errors.New("the handle is on another server")}, nil
		}
		request.Method, request.URL = http.MethodGet, location
		request.Body, request.GetBody, request.ContentLength = nil, nil, 0
		request.TransferEncoding = nil
		request.Header.Del(KeyHeader)
		request.Header.Del("Content-Type")
	} else if c.request.GetBody != nil {
		body, err := c.request.GetBody()
		if err != nil {
			return tried{}, err
		}
		request.Body = body
	}
	if c.transport.Header != nil {
		for name, values := range c.transport.Header() {
			request.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	for name, values := range headers {
		request.Header[name] = values
	}
	stop := c.clock.AfterFunc(shorter(c.limits.AttemptTimeout, c.left()), cancel)
	defer stop()
	response, err := c.transport.base().RoundTrip(request)
	if err == nil {
		// A connection that breaks in the body is a failed attempt, so the body is read here.
		var body []byte
		body, err = io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil {
			response.Body = io.NopCloser(bytes.NewReader(body))
			return tried{answer: &answer{response: response, body: body}}, nil
		}
	}
	if ended := c.request.Context().Err(); ended != nil {
		return tried{}, ended
	}
	return tried{cause: err}, nil
}

func (c *call) end(decided verdict, last tried) (*http.Response, error) {
	if decided.action == fail && (decided.kind != ErrRefused || c.transport.ErrorOnRefusal) {
		return nil, c.failure(decided.kind, last, "")
	}
	c.observe(Event{Type: "end", Attempt: c.attempts, Status: last.status()})
	response := last.answer.response
	outcome := Outcome{c.key, last.answer.replayed(), last.answer.header("Idempotency-Reference"), c.attempts}
	response.Request = c.request.WithContext(context.WithValue(c.request.Context(), outcomeKey{}, outcome))
	return response, nil
}

func (c *call) failure(kind error, last tried, reason EndReason) *CallError {
	failed := &CallError{Kind: kind, Key: c.key, Attempts: c.attempts, Reason: reason, Cause: last.cause}
	if last.answer != nil {
		failed.Problem = last.answer.problem()
		failed.Response = last.answer.response
		failed.Replayed = last.answer.replayed()
		failed.Reference = last.answer.header("Idempotency-Reference")
		if failed.Reference == "" {
			failed.Reference = failed.Problem.text("reference")
		}
	}
	c.observe(Event{Type: "end", Attempt: c.attempts, Err: kind, Status: last.status()})
	return failed
}

func (c *call) left() time.Duration { return c.deadline - c.clock.Monotonic() }

func (c *call) observe(event Event) {
	if c.transport.Observe != nil {
		event.Context = c.request.Context()
		c.transport.Observe(event)
	}
}

type systemClock struct{}

var processStart = time.Now()

func (systemClock) Monotonic() time.Duration { return time.Since(processStart) }

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) Sleep(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (systemClock) AfterFunc(delay time.Duration, f func()) func() {
	timer := time.AfterFunc(delay, f)
	return func() { timer.Stop() }
}

func (systemClock) Random() float64 { return random.Float64() }

// random is seeded, because the global source of Go 1.19 always gives the same numbers.
var random = &lockedRandom{source: rand.New(rand.NewSource(time.Now().UnixNano()))}

type lockedRandom struct {
	mutex  sync.Mutex
	source *rand.Rand
}

func (r *lockedRandom) Float64() float64 {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.source.Float64()
}
