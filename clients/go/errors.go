package onetake

import (
	"errors"
	"fmt"
	"net/http"
)

// The kinds of calls without a result, for errors.Is.
var (
	// ErrMismatch: the key was used before with another payload. Nothing was run.
	ErrMismatch = errors.New("the key was used before with another payload; a new operation needs a new key")
	// ErrInProgress: the operation is still running.
	ErrInProgress = errors.New("the operation is still running; ask again later with the same key")
	// ErrOutcomeUnknown: the operation may have had its effect, and nobody knows.
	ErrOutcomeUnknown = errors.New("the outcome is unknown: the operation may have had its effect; do not pick a new key, because a new key could run the operation twice; ask again later with the same key")
	// ErrRefused: a definite answer that is not a success. A retry would get it again.
	ErrRefused = errors.New("the operation was refused")
	// ErrUnavailable: no definite answer within the limits of the call.
	ErrUnavailable = errors.New("there was no definite answer; the operation may have run; try again later with the same key")
)

// ErrBodyNotReplayable says that a body can be read only once. Nothing was sent.
var ErrBodyNotReplayable = errors.New("onetake: the body cannot be sent again in a retry: set Request.GetBody, or use a bytes.Reader, bytes.Buffer or strings.Reader")

// EndReason is the limit that ended a call.
type EndReason string

// The limits that can end a call.
const (
	EndAttempts EndReason = "attempts"
	EndDeadline EndReason = "deadline"
	EndBudget   EndReason = "budget"
)

// Problem is a problem document of onetake (RFC 9457), or the same content in Stripe's format.
type Problem map[string]any

// Code returns the code of the problem, for programs.
func (p Problem) Code() string { return p.text("code") }

// Detail returns the text of the problem, for people.
func (p Problem) Detail() string {
	if detail := p.text("detail"); detail != "" {
		return detail
	}
	return p.text("message")
}

func (p Problem) text(name string) string {
	text, _ := p[name].(string)
	return text
}

// CallError is a call that has no result. Its kind is one of the errors above.
type CallError struct {
	// Kind is ErrMismatch, ErrInProgress, ErrOutcomeUnknown, ErrRefused or ErrUnavailable.
	Kind error
	// Key is the key of the operation. Keep it: only a retry with the same key is safe.
	Key string
	// Attempts is the number of times that the operation was sent.
	Attempts int
	// Reason is the limit that ended the call. It is empty if the answer was final.
	Reason EndReason
	// Problem is the problem document of the last answer, if it has one.
	Problem Problem
	// Reference is the name of the operation for support.
	Reference string
	// Replayed is true if the answer is a recorded one.
	Replayed bool
	// Response is the last answer, with its whole body in memory. It is nil if there was none.
	Response *http.Response
	// Cause is the error of the connection, if there was no answer.
	Cause error
}

// Error says what to do.
func (e *CallError) Error() string {
	text := "onetake: " + e.Kind.Error()
	if e.Reason != "" {
		text += fmt.Sprintf(" (limit: %s)", e.Reason)
	}
	if e.Response != nil {
		text += fmt.Sprintf("; status %d", e.Response.StatusCode)
	}
	if detail := e.Problem.Detail(); detail != "" {
		text += "; " + detail
	}
	if e.Reference != "" {
		text += "; reference " + e.Reference
	}
	return text
}

// Is reports whether target is the kind of the error.
func (e *CallError) Is(target error) bool { return target == e.Kind }

// Unwrap returns the error of the connection.
func (e *CallError) Unwrap() error { return e.Cause }
