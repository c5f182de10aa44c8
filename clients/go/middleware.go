package onetake

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
)

// OutcomeHeader is the response header by which a service says what became of an attempt: "record",
// "release" or "unknown". The gateway reads it.
const OutcomeHeader = "Onetake-Outcome"

// Operation is what the gateway says about the attempt that a request belongs to.
type Operation struct {
	// Key is the client's key.
	Key string
	// Fence is a number that is higher for every later attempt, or 0. A service can refuse lower ones.
	Fence uint64
	// DerivedKey is the key for the service's own calls. It is the same in every attempt.
	DerivedKey string
}

type operationKey struct{}

// Middleware makes OperationFrom available to a handler.
func Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A fence that cannot be read is none.
		fence, _ := strconv.ParseUint(r.Header.Get("Idempotency-Fence"), 10, 64)
		operation := Operation{r.Header.Get(KeyHeader), fence, r.Header.Get("Idempotency-Derived-Key")}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operationKey{}, operation)))
	})
}

// OperationFrom returns the operation of a request that passed Middleware.
func OperationFrom(ctx context.Context) (Operation, bool) {
	operation, ok := ctx.Value(operationKey{}).(Operation)
	return operation, ok
}

// Reconciled is what became of an operation, as the service knows it.
//
// Warning: "release" says for certain that the operation had no effect and never will. The next
// retry runs it.
type Reconciled struct {
	// Outcome is "record", "release" or "unknown".
	Outcome string
	// Status and Body are those of the operation's response, if it is recorded. Body becomes JSON.
	Status int
	Body   any
	Header http.Header
}

// ReconcileHandler answers the gateway's questions. derivedKey reads the key from a request, such as
// from its path; an error of find means that the outcome is unknown.
func ReconcileHandler(derivedKey func(*http.Request) string, find func(ctx context.Context, derivedKey string) (Reconciled, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found, err := find(r.Context(), derivedKey(r))
		var body []byte
		if err == nil && found.Outcome == "record" {
			body, err = json.Marshal(found.Body)
		}
		switch {
		case err != nil || (found.Outcome != "record" && found.Outcome != "release"):
			w.Header().Set(OutcomeHeader, "unknown")
			w.WriteHeader(http.StatusServiceUnavailable)
		case found.Outcome == "release":
			w.Header().Set(OutcomeHeader, "release")
			w.WriteHeader(http.StatusNotFound)
		default:
			w.Header().Set("Content-Type", "application/json")
			for name, values := range found.Header {
				w.Header()[http.CanonicalHeaderKey(name)] = values
			}
			w.Header().Set(OutcomeHeader, "record")
			w.Header().Set("Onetake-Status", strconv.Itoa(found.Status))
			// The gateway asks again if the answer does not arrive.
			_, _ = w.Write(body)
		}
	})
}
