
¤
billing.proto
billing.v1"3
ChargeRequest
amount (

request_id (	2J
Payments>
Charge.billing.v1.ChargeRequest.billing.v1.ChargeRequestbproto3