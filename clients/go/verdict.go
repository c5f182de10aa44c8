package onetake

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// answer is a response whose body has been read.
type answer struct {
	response *http.Response
	body     []byte
}

type action int

const (
	finish action = iota
	poll
	retry
	fail
)

// verdict is what follows an answer.
type verdict struct {
	action action
	kind   error
	handle string
}

var unanswered = verdict{action: retry, kind: ErrUnavailable}

var byCode = map[string]verdict{
	"request_in_progress":     {action: retry, kind: ErrInProgress},
	"in_progress_timeout":     {action: retry, kind: ErrInProgress},
	"outcome_unknown":         {action: retry, kind: ErrOutcomeUnknown},
	"outcome_pending":         {action: retry, kind: ErrOutcomeUnknown},
	"previous_attempt_failed": {action: fail, kind: ErrOutcomeUnknown},
	"misconfigured":           {action: fail, kind: ErrRefused},
}

// verdictOf decides what follows the answer to an operation.
func verdictOf(a *answer) verdict {
	status, code := a.response.StatusCode, a.problem().Code()
	if code == "idempotency_payload_mismatch" {
		return verdict{action: fail, kind: ErrMismatch}
	}
	// A recorded answer is the outcome, whatever its status: a retry would get it again.
	if a.replayed() {
		if status < 400 {
			return verdict{action: finish}
		}
		return verdict{action: fail, kind: ErrRefused}
	}
	handle := a.header("Location")
	if status == http.StatusAccepted && strings.Contains(handle, "/.onetake/operations/") {
		return verdict{action: poll, handle: handle}
	}
	if status < 400 {
		return verdict{action: finish}
	}
	if known, ok := byCode[code]; ok {
		return known
	}
	switch status {
	case 408, 425, 429, 502, 503, 504:
		return verdict{action: retry, kind: ErrUnavailable}
	}
	if status < 500 {
		return verdict{action: fail, kind: ErrRefused}
	}
	// Any other 5xx leaves the outcome open, unless the answer says that the key was released.
	if a.header("Onetake-Outcome") == "release" {
		return verdict{action: retry, kind: ErrUnavailable}
	}
	return verdict{action: fail, kind: ErrOutcomeUnknown}
}

// verdictOfPoll decides what follows the answer to a poll of a handle.
func verdictOfPoll(a *answer) verdict {
	var running struct {
		Status any `json:"status"`
	}
	if a.response.StatusCode == http.StatusOK && !a.replayed() && a.decode(&running) && running.Status == "running" {
		return verdict{action: retry, kind: ErrInProgress}
	}
	// The outcome has expired or belongs to another caller. Sending the operation again could run
	// it twice.
	if a.problem().Code() == "operation_not_found" {
		return verdict{action: fail, kind: ErrOutcomeUnknown}
	}
	decided := verdictOf(a)
	if decided.action == poll {
		return verdict{action: retry, kind: ErrInProgress}
	}
	return decided
}

func (a *answer) header(name string) string { return a.response.Header.Get(name) }

func (a *answer) replayed() bool { return a.header("Idempotent-Replayed") == "true" }

func (a *answer) decode(into any) bool {
	return strings.Contains(a.header("Content-Type"), "json") && json.Unmarshal(a.body, into) == nil
}

// problem returns the problem document, also in Stripe's format, or nil.
func (a *answer) problem() Problem {
	var document map[string]any
	if a.response.StatusCode < 400 || !a.decode(&document) {
		return nil
	}
	if inner, ok := document["error"].(map[string]any); ok {
		document = inner
	}
	if _, ok := document["code"].(string); !ok {
		return nil
	}
	return document
}

// wait returns the time for which the server asks to wait, or 0.
func (a *answer) wait(now time.Time) time.Duration {
	longest := retryAfter(strings.TrimSpace(a.header("Retry-After")), now)
	for _, item := range strings.Split(a.header("RateLimit"), ",") {
		if !rateLimitEmpty.MatchString(item) {
			continue
		}
		if found := rateLimitTime.FindStringSubmatch(item); found != nil {
			longest = longer(longest, seconds(found[1]))
		}
	}
	if a.header("RateLimit-Remaining") == "0" {
		longest = longer(longest, seconds(a.header("RateLimit-Reset")))
	}
	return longest
}

var (
	rateLimitEmpty = regexp.MustCompile(`;\s*r=0(\D|$)`)
	rateLimitTime  = regexp.MustCompile(`;\s*t=(\d+)`)
)

func retryAfter(text string, now time.Time) time.Duration {
	if date, err := http.ParseTime(text); err == nil {
		return longer(0, date.Sub(now))
	}
	return seconds(text)
}

// The longest wait that is told apart, in seconds. It is longer than any deadline.
const secondsMax = 1<<31 - 1

// seconds reads a number of seconds, or returns 0.
func seconds(text string) time.Duration {
	number, err := strconv.ParseUint(text, 10, 31)
	if errors.Is(err, strconv.ErrRange) {
		number = secondsMax
	} else if err != nil {
		return 0
	}
	return time.Duration(number) * time.Second
}

func longer(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}
